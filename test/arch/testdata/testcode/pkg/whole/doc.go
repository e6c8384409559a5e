// Package whole is part of a fixture.
package whole

import (
	_ "github.com/stretchr/testify/require"
	_ "go.uber.org/goleak"
)
