package footprint

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeepEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, Keep(ctx))
}
