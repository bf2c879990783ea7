"""The auditor's page: what is known of a generation in one file that opens anywhere and can be checked again.

What is told is gathered into a record of plain values; the page is made of the record alone, so that it can be made
again and compared; a seal covers its bytes. Nothing is written but the file that is asked for.
"""
