package versions

import "context"

type creationKey struct{}

// WithCreation has ask asked about each object that a request of ctx creates, by its name,
// right before it is stored: admission has let it pass then, which may have taken long.
func WithCreation(ctx context.Context, ask func(ctx context.Context, name string) error) context.Context {
	return context.WithValue(ctx, creationKey{}, ask)
}

// mayCreate asks what WithCreation says.
func mayCreate(ctx context.Context, name string) error {
	if ask, ok := ctx.Value(creationKey{}).(func(context.Context, string) error); ok {
		return ask(ctx, name)
	}
	return nil
}
