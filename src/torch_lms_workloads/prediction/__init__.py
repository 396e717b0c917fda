"""What a trained network says of whole images. Lower files first:

padding             to sides that the network can take, and back
trained             the network of a checkpoint
panels              input, truth and prediction side by side
"""
