package etcd

import (
	"context"
	"fmt"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// newLogger returns a logger for etcd that writes to that of ctx. After errors that etcd considers fatal, it panics
// instead of ending the process, so that Start can return an error.
func newLogger(ctx context.Context) *zap.Logger {
	return zap.New(klogCore{logger: klog.FromContext(ctx)}, zap.WithFatalHook(panicHook{}), zap.WithPanicHook(panicHook{}))
}

type panicHook struct{}

func (panicHook) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	message := entry.Message
	if cause, ok := encodeFields(fields)["error"]; ok {
		message = fmt.Sprintf("%s: %v", message, cause)
	}
	panic(message)
}

// klogCore is a zapcore.Core that writes to the logger of a server.
type klogCore struct {
	logger klog.Logger
	fields []zapcore.Field
}

// verbosity is high, because etcd logs many messages.
var verbosity = map[zapcore.Level]int{zapcore.DebugLevel: 6, zapcore.InfoLevel: 5, zapcore.WarnLevel: 2}

func (c klogCore) Enabled(level zapcore.Level) bool {
	return level >= zapcore.ErrorLevel || c.logger.V(verbosity[level]).Enabled()
}

func (c klogCore) With(fields []zapcore.Field) zapcore.Core {
	return klogCore{logger: c.logger, fields: append(slices.Clip(c.fields), fields...)}
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
		c.logger.Error(nil, message, pairs...)
		return nil
	}
	c.logger.V(verbosity[entry.Level]).Info(message, pairs...)
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
