"""What pages are made of: styles and scripts."""
