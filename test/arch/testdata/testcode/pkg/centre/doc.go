// Package centre is part of a fixture, and centretest, too.
package centre

import (
	_ "testing"
)
