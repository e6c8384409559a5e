// Package centre is part of a fixture.
package centre

import (
	_ "example.com/m/pkg/parts/a"
)
