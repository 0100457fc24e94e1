class CalendarEnv(ToolEnv):
    """Missing value: the user leaves out how long the meeting is, ask_user knows."""
    tools = [
        {"name": "free_slots", "description": "The hours of a day that are free.", "parameters": {
            "type": "object", "required": ["day"], "properties": {
                "day": {"type": "string", "enum": ["Monday", "Tuesday", "Wednesday"]}}}},
        {"name": "book", "description": "Book a meeting.", "parameters": {
            "type": "object", "required": ["day", "hour", "title", "minutes"], "properties": {
                "day": {"type": "string"}, "hour": {"type": "integer"}, "title": {"type": "string"},
                "minutes": {"type": "integer", "enum": [15, 30, 45, 60]}}}},
        {"name": "cancel", "description": "Cancel what is booked at an hour.", "parameters": {
            "type": "object", "required": ["day", "hour"], "properties": {
                "day": {"type": "string"}, "hour": {"type": "integer"}}}},
        {"name": "ask_user", "description": "Ask the user for a detail.", "parameters": {
            "type": "object", "required": ["about"], "properties": {
                "about": {"type": "string", "enum": ["length", "title", "room"]}}}},
    ]

    def setup(self, rng):
        self.booked = {(day, hour): ("Other", 60) for day in ("Monday", "Tuesday", "Wednesday")
                       for hour in rng.sample(range(9, 17), 5)}
        self.minutes = rng.choice([15, 30, 45])
        self.day = rng.choice(["Monday", "Tuesday"])
        self.first = min(hour for hour in range(9, 17) if (self.day, hour) not in self.booked)
        self.gone = min(hour for day, hour in self.booked if day == "Wednesday")
        return [(f"Put Review into my first free hour on {self.day}.",
                 lambda: self.booked.get((self.day, self.first)) == ("Review", self.minutes)),
                ("Drop my first appointment on Wednesday.", lambda: ("Wednesday", self.gone) not in self.booked),
                ("Use that hour for Sport, a full hour.",
                 lambda: self.booked.get(("Wednesday", self.gone)) == ("Sport", 60))]

    def tool_free_slots(self, day):
        return ", ".join(f"{hour}:00" for hour in range(9, 17) if (day, hour) not in self.booked)

    def tool_book(self, day, hour, title, minutes):
        if (day, hour) in self.booked:
            return "That hour is taken."
        self.booked[day, hour] = (title, minutes)
        return f"{title} is booked on {day} at {hour}:00."

    def tool_cancel(self, day, hour):
        del self.booked[day, hour]
        return "Cancelled."

    def tool_ask_user(self, about):
        return {"length": f"{self.minutes} minutes", "title": "As I said.", "room": "Any."}[about]

    def solution(self):
        return [self.call("free_slots", day=self.day), self.call("ask_user", about="length"),
                self.call("book", day=self.day, hour=self.first, title="Review", minutes=self.minutes),
                self.call("free_slots", day="Wednesday"),
                self.call("cancel", day="Wednesday", hour=self.gone),
                self.call("book", day="Wednesday", hour=self.gone, title="Sport", minutes=60)]
