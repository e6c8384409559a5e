package etcd

import (
	"fmt"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// newLogger returns a logger for etcd that writes to klog. After errors that etcd considers fatal, it panics instead of
// ending the process, so that Start can return an error.
func newLogger() *zap.Logger {
	return zap.New(klogCore{}, zap.WithFatalHook(panicHook{}), zap.WithPanicHook(panicHook{}))
}

type panicHook struct{}

func (panicHook) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	message := entry.Message
	if cause, ok := encodeFields(fields)["error"]; ok {
		message = fmt.Sprintf("%s: %v", message, cause)
	}
	panic(message)
}

// klogCore is a zapcore.Core that writes to klog.
type klogCore struct {
	fields []zapcore.Field
}

// verbosity is high, because etcd logs many messages.
func verbosity(level zapcore.Level) klog.Level {
	switch level {
	case zapcore.DebugLevel:
		return 6
	case zapcore.InfoLevel:
		return 5
	case zapcore.WarnLevel:
		return 2
	default:
		return 0
	}
}

func (c klogCore) Enabled(level zapcore.Level) bool {
	return level >= zapcore.ErrorLevel || klog.V(verbosity(level)).Enabled()
}

func (c klogCore) With(fields []zapcore.Field) zapcore.Core {
	return klogCore{fields: append(slices.Clip(c.fields), fields...)}
}

// harmless is logged as an error by a new etcd. It reads the term before there is one, and retries later.
const harmless = "failed to update storage version"

func (c klogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if entry.Message == harmless {
		entry.Level = zapcore.WarnLevel
	}
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c klogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	values := encodeFields(append(slices.Clip(c.fields), fields...))
	pairs := make([]any, 0, 2*len(values))
	for key, value := range values {
		pairs = append(pairs, key, value)
	}
	message := "etcd: " + entry.Message
	if entry.Level >= zapcore.ErrorLevel {
		klog.ErrorS(nil, message, pairs...)
		return nil
	}
	klog.V(verbosity(entry.Level)).InfoS(message, pairs...)
	return nil
}

func (c klogCore) Sync() error {
	klog.Flush()
	return nil
}

// withContent is the field of debug messages with stored values, including Secrets.
const withContent = "raftReq"

func encodeFields(fields []zapcore.Field) map[string]any {
	encoder := zapcore.NewMapObjectEncoder()
	for _, field := range fields {
		if field.Key != withContent {
			field.AddTo(encoder)
		}
	}
	return encoder.Fields
}
