class BankEnv(ToolEnv):
    """Error recovery: a locked account refuses transfers by raising, and must be unlocked with a code first."""
    tools = [
        {"name": "accounts", "description": "All accounts with owner and balance.", "parameters": {
            "type": "object", "properties": {}}},
        {"name": "security_code", "description": "The code of an account.", "parameters": {
            "type": "object", "required": ["account"], "properties": {"account": {"type": "string"}}}},
        {"name": "unlock", "description": "Unlock an account.", "parameters": {
            "type": "object", "required": ["account", "code"], "properties": {
                "account": {"type": "string"}, "code": {"type": "integer"}}}},
        {"name": "transfer", "description": "Move money.", "parameters": {
            "type": "object", "required": ["source", "target", "amount"], "properties": {
                "source": {"type": "string"}, "target": {"type": "string"}, "amount": {"type": "number"},
                "speed": {"type": "string", "enum": ["normal", "express"]}}}},
    ]

    def setup(self, rng):
        ids = [f"AC{rng.randint(100, 999)}{i}" for i in range(4)]
        self.balance = {account: 1000 for account in ids}
        self.owner = dict(zip(ids, rng.sample(["Weber", "Okafor", "Silva", "Tanaka"], 4)))
        self.code = {account: rng.randint(1000, 9999) for account in ids}
        self.locked = {ids[0]}
        self.a, self.b, self.c = ids[:3]
        return [(f"Send 250 from Ms {self.owner[self.a]} to Ms {self.owner[self.b]}.",
                 lambda: self.balance[self.b] == 1250),
                (f"And 100 from Ms {self.owner[self.b]} to Ms {self.owner[self.c]}, please.",
                 lambda: self.balance[self.c] == 1100),
                ("Now send those 100 back.", lambda: (self.balance[self.b], self.balance[self.c]) == (1250, 1000))]

    def tool_accounts(self):
        return "\n".join(f"{account}: {self.owner[account]}, {self.balance[account]}" for account in self.balance)

    def tool_security_code(self, account):
        return str(self.code[account])

    def tool_unlock(self, account, code):
        if self.code[account] != code:
            raise PermissionError("wrong code")
        self.locked.discard(account)
        return "Unlocked."

    def tool_transfer(self, source, target, amount, speed="normal"):
        if source in self.locked:
            raise PermissionError(f"{source} is locked; unlock it with its code")
        if self.balance[source] < amount:
            raise ValueError("not enough money")
        self.balance[source] -= amount
        self.balance[target] += amount
        return f"Sent, {speed}."

    def solution(self):
        return [self.call("accounts"), self.call("transfer", source=self.a, target=self.b, amount=250),
                self.call("security_code", account=self.a),
                self.call("unlock", account=self.a, code=self.code[self.a]),
                self.call("transfer", source=self.a, target=self.b, amount=250),
                self.call("transfer", source=self.b, target=self.c, amount=100),
                self.call("transfer", source=self.c, target=self.b, amount=100, speed="express")]
