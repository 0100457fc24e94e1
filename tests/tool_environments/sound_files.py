class FilesEnv(ToolEnv):
    """Nested arguments, unicode names, a tool that is no help (a distractor), a helper class beside the world."""
    tools = [
        {"name": "ls", "description": "Names in a folder.", "parameters": {
            "type": "object", "required": ["folder"], "properties": {"folder": {"type": "string"}}}},
        {"name": "move", "description": "Move files.", "parameters": {
            "type": "object", "required": ["files", "target"], "properties": {
                "files": {"type": "array", "items": {"type": "string"}},
                "target": {"type": "object", "required": ["folder"], "properties": {
                    "folder": {"type": "string"}, "create": {"type": "boolean"}}}}}},
        {"name": "disk_usage", "description": "How full the disk is.", "parameters": {
            "type": "object", "properties": {"unit": {"type": "string", "enum": ["MB", "GB"]}}}},
    ]

    def setup(self, rng):
        self.disk = Disk({"inbox": [f"größe-{rng.randint(0, 999)}.txt", f"日記-{rng.randint(0, 999)}.md"], "old": []})
        self.text, self.diary = self.disk.folders["inbox"]
        return [("Archive the text file from my inbox under old.", lambda: self.text in self.disk.folders["old"]),
                ("My diary gets a folder of its own, call it diary.",
                 lambda: self.disk.folders.get("diary") == [self.diary]),
                ("Put the text file there as well.", lambda: self.text in self.disk.folders.get("diary", []))]

    def tool_ls(self, folder):
        return ", ".join(self.disk.folders[folder]) or "(empty)"

    def tool_move(self, files, target):
        return self.disk.move(files, target["folder"], target.get("create", False))

    def tool_disk_usage(self, unit="MB"):
        return f"12 {unit}"

    def solution(self):
        return [self.call("ls", folder="inbox"), self.call("move", files=[self.text], target={"folder": "old"}),
                self.call("move", files=[self.diary], target={"folder": "diary", "create": True}),
                self.call("move", files=[self.text], target={"folder": "diary"})]


class Disk:
    def __init__(self, folders):
        self.folders = folders

    def move(self, files, folder, create):
        if create:
            self.folders.setdefault(folder, [])
        if folder not in self.folders:
            return f"No folder {folder}."
        for name in files:
            next(names for names in self.folders.values() if name in names).remove(name)
            self.folders[folder].append(name)
        return "Moved."
