"""Files: decoded and cut at silence in a child process of their own, recognised in the batch lane.

file → child: PyAV → the source's timeline → VAD → stretches of speech → recogniser → segments
"""
