"""The rules of a conversation, where a chat template shows them.

A file of its own because templates differ: some have a system message, some refuse it, some leave it out without a
word. Where it does not reach the model, the user begins with the rules.
"""
import dataclasses

from jinja2 import TemplateError

from settings.setting import Setting

RAISED = (TemplateError, ValueError, TypeError, LookupError, AttributeError)   # by templates of several families


def as_system(observation, info, hint, brief):
    return [{"role": "system", "content": info["rules"]},
            {"role": "user", "content": observation}], info.get("tools")


def as_user(observation, info, hint, brief):
    return [{"role": "user", "content": f"{info['rules']}\n\n{observation}"}], info.get("tools")


def for_model(policy, setting: Setting) -> Setting:
    """The setting for one model; one without rules stays as it is."""
    if setting.agent_messages is not as_system:
        return setting
    messages, _ = as_system("some-words", {"rules": "some-rules"}, "", False)
    try:
        shown = policy.tokenizer.decode(policy.prompt_ids(messages))
    except RAISED:
        shown = ""
    return setting if "some-rules" in shown else dataclasses.replace(setting, agent_messages=as_user)
