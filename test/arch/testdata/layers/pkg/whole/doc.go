// Package whole is part of a fixture.
package whole

import (
	_ "example.com/m/pkg/stray"
)
