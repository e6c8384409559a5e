// Package suite is part of a fixture.
package suite

import (
	_ "testing"
)
