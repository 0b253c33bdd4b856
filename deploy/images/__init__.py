"""The container image: its base, its layers, the context it is built from, the build.

One Dockerfile (``containers/Dockerfile``) serves every base and flavour. All that it takes
lies in the context (:mod:`.context`), so a build needs no network; only the base
(:mod:`.base`) may come from one.
"""
