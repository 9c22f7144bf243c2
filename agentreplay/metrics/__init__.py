"""What is measured: records, and the numbers made of them."""
