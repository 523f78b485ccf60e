"""
x
=
t
"""
print(1)
