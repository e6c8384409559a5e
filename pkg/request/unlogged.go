package request

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// BodyLevel is the verbosity from which on client-go logs bodies.
const BodyLevel = 8

// WithoutBodies returns a context whose calls are logged without what is sent and
// answered: TokenReviews hold everybody's tokens, AdmissionReviews the Secrets of
// tenants, and secrets of service accounts tokens without an end.
func WithoutBodies(ctx context.Context) context.Context {
	logger := klog.FromContext(ctx)
	return klog.NewContext(ctx, logger.WithSink(withoutBodies{logger.GetSink()}))
}

// withoutBodies logs what is less verbose than bodies.
type withoutBodies struct{ logr.LogSink }

// Enabled implements logr.LogSink.
func (s withoutBodies) Enabled(level int) bool {
	return level < BodyLevel && s.LogSink.Enabled(level)
}

// WithValues implements logr.LogSink.
func (s withoutBodies) WithValues(pairs ...any) logr.LogSink {
	return withoutBodies{s.LogSink.WithValues(pairs...)}
}

// WithName implements logr.LogSink.
func (s withoutBodies) WithName(name string) logr.LogSink {
	return withoutBodies{s.LogSink.WithName(name)}
}
