"""Log-probs of the tokens that a model sampled, without ever holding all its logits.

A file of its own because it is the one place with a hand-written derivative. Logits are the largest tensor of the whole
run: 4,096 tokens x 151,936 entries in float32 are 2.5 GB, and log_softmax with its gradient needs several such. So the
head is applied to a few hundred tokens at a time, only where `mask` asks for it, and once more in backward instead of
keeping its output. With z the logits over the temperature and p = softmax(z):
    log p_y = z_y - logsumexp(z)       H = logsumexp(z) - sum p z       d log p_y / d z = onehot(y) - p
Autograd would find the same gradient with three more passes over every chunk; that is 40 % of the head's time.
"""
import torch
from torch import nn
from torch.nn.functional import linear

LOGITS = 2**26   # logits of one chunk: 0.3 GB in float32


class _Score(torch.autograd.Function):
    """hidden (N, H), weight (V, H), bias (V,) or None, targets (N,) -> log-probs and entropies (N,), these without
    gradient."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, temperature, chunk):
        logprobs, entropies, normalisers = [], [], []
        for h, y in zip(hidden.split(chunk), targets.split(chunk)):
            logits = linear(h, weight, bias).float().div_(temperature)   # (n, V)
            normaliser = logits.logsumexp(-1)                            # (n,)
            shares = (logits - normaliser[:, None]).exp_()               # (n, V)
            logprobs.append(logits.gather(1, y[:, None])[:, 0] - normaliser)
            entropies.append(normaliser - torch.linalg.vecdot(shares, logits))
            normalisers.append(normaliser)
        ctx.save_for_backward(hidden, weight, bias, targets, torch.cat(normalisers))
        ctx.temperature, ctx.chunk = temperature, chunk
        entropy = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy)
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx, grad, _):
        hidden, weight, bias, targets, normalisers = ctx.saved_tensors
        d_hidden = []
        d_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)   # a sum over many chunks
        d_bias = None if bias is None else torch.zeros_like(d_weight[:, 0])
        pieces = (tensor.split(ctx.chunk) for tensor in (hidden, targets, normalisers, grad / ctx.temperature))
        for h, y, normaliser, g in zip(*pieces):
            logits = linear(h, weight, bias).float().div_(ctx.temperature)
            d_logits = logits.sub_(normaliser[:, None]).exp_().mul_(-g[:, None])   # (n, V), in the logits' memory
            d_logits.scatter_add_(1, y[:, None], g[:, None])
            if bias is not None:
                d_bias += d_logits.sum(0)
            d_logits = d_logits.to(weight.dtype)
            d_hidden.append(d_logits @ weight)
            if weight.dtype == torch.float32:
                d_weight.addmm_(d_logits.T, h)
            else:
                d_weight += d_logits.T @ h
        d_bias = None if bias is None else d_bias.to(bias.dtype)
        return torch.cat(d_hidden), d_weight.to(weight.dtype), d_bias, None, None, None


class TokenLogProbs(nn.Module):
    """A causal language model whose forward gives log-probs instead of logits."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, self.chunk = model, max(1, LOGITS // model.config.vocab_size)

    def forward(self, ids, attention_mask, mask, temperature: float = 1.0):
        """Log-probs and entropies of the tokens where `mask` is True.

        ids, attention_mask, mask: (B, T). mask[:, 0] must be False: nothing predicts the first token.
        Returns two (N,) tensors, N = mask.sum(), in row-major order; the entropy carries no gradient.

        Example: ids [[5, 6, 7]], mask [[0, 1, 1]] -> [log p(6 | 5), log p(7 | 5, 6)].
        """
        hidden = self.model.get_decoder()(input_ids=ids, attention_mask=attention_mask,
                                          use_cache=False).last_hidden_state
        hidden = hidden[:, :-1][mask[:, 1:]]   # (N, H): position t predicts token t + 1
        targets = ids[:, 1:][mask[:, 1:]]      # (N,)
        head = self.model.get_output_embeddings()
        return _Score.apply(hidden, head.weight, head.bias, targets, temperature, self.chunk)
