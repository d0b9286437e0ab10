"""The door of a site: the ClientApp that Flower starts anew for every order, light enough to start at once.

It stands beside the package `fedhead`, not in it, because importing that imports torch. The order goes to the site's
worker, a process that has torch and the data loaded already (`fedhead.flower.worker`); the first order starts it, and
it leaves with the SuperNode, or when it was idle for long.
"""
