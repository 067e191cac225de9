"""What particles answer: the Stein equation, the matching set, certificates, queries, weights of any draws."""
