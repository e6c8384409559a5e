// Package centretest is part of a fixture.
package centretest

import (
	_ "testing"
)
