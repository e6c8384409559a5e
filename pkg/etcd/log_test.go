package etcd

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// TestLogWithoutContent verifies that etcd's debug messages do not contain stored values.
func TestLogWithoutContent(t *testing.T) {
	t.Parallel()
	require.Equal(t, map[string]any{"index": int64(7)}, encodeFields([]zapcore.Field{zap.Int("index", 7), zap.String("raftReq", "put:{value:secret}")}))
}
