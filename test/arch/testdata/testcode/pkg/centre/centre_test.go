package centre

import (
	_ "testing"
	_ "github.com/stretchr/testify/require"
)
