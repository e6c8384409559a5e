package harness

import (
	"context"
	"slices"
	"sync"
)

// Warnings collects the warnings that a client receives. It implements rest.WarningHandlerWithContext.
type Warnings struct {
	mu    sync.Mutex
	texts []string
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (w *Warnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

// Take returns the warnings since its last call.
func (w *Warnings) Take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	texts := slices.Clone(w.texts)
	w.texts = nil
	return texts
}
