package request

import "context"

type pauseKey struct{}

// WithPause returns a context whose request takes a place among those that the
// server executes at a time. pause gives the place to another request, until
// resume, which may wait for a place; both may be called from several goroutines.
func WithPause(ctx context.Context, pause func() (resume func())) context.Context {
	return context.WithValue(ctx, pauseKey{}, pause)
}

// Pause says that the request of ctx now waits for somebody else, such as a
// tenant's webhook, which may take long, and may itself send requests that have
// to be executed first. The caller calls resume when it goes on, and holds nothing then
// that other requests wait for while they have a place.
func Pause(ctx context.Context) (resume func()) {
	pause, ok := ctx.Value(pauseKey{}).(func() (resume func()))
	if !ok {
		return func() {}
	}
	return pause()
}
