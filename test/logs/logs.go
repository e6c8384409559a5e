// Package logs has tests see what the code that they try has logged.
package logs

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// New returns a logger of the test, for the context of what is tried, and what has been logged with
// it so far.
func New(t testing.TB, options ...ktesting.ConfigOption) (klog.Logger, ktesting.Buffer) {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(append(options, ktesting.BufferLogs(true))...))
	underlier, ok := logger.GetSink().(ktesting.Underlier)
	require.True(t, ok)
	return logger, underlier.GetBuffer()
}
