from whippletree.cli import main

main()
