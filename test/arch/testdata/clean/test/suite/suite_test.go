// Package suite_test is part of a fixture.
package suite_test

import (
	_ "testing"
	_ "example.com/m/pkg/whole"
)
