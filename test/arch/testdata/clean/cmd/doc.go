// Package main is part of a fixture.
package main

import (
	_ "example.com/m/pkg/whole"
)
