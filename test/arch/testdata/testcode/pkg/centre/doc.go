// Package centre is part of a fixture.
package centre

import (
	_ "testing"
)
