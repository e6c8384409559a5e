// Package a is part of a fixture.
package a

import (
	_ "example.com/m/pkg/parts/b"
)
