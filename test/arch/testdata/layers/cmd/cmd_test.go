package main

import (
	_ "example.com/m/test/suite"
)
