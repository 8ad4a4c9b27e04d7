"""Tools: how they are declared, checked, executed, and what they give back.

declaring.py   @tool: a function becomes a Tool, or all its faults are named
checking.py    a tool_use block becomes a ToolCall, repaired or with a reason for the model
policy.py      which of them may run
executing.py   execute_batch: the calls of one answer become their results
bash.py        a shell as a tool
"""
