"""Work on whole datasets: conversion, verification, statistics, indexes, and the engines that run it."""
