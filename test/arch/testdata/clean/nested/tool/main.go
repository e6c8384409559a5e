package main

import (
	_ "example.com/anything"
)
