// Package logs gives tests access to the log messages of the tested code.
package logs

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// New returns a logger for the context of the tested code, and the buffer with its messages.
func New(t testing.TB, options ...ktesting.ConfigOption) (klog.Logger, ktesting.Buffer) {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(append(options, ktesting.BufferLogs(true))...))
	underlier, ok := logger.GetSink().(ktesting.Underlier)
	require.True(t, ok)
	return logger, underlier.GetBuffer()
}
