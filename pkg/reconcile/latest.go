package reconcile

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/shardplane/shardplane/pkg/client"
)

// Latest remembers the objects that a controller has just written until an
// informer has caught up with them. Without it a controller that is quick
// decides on the state before its own last write, and runs into a conflict.
//
// The zero value is ready to use. All objects must come from one server, since
// resource versions compare only there.
type Latest[T client.Object] struct {
	mu      sync.Mutex
	objects map[client.Key]T
}

// Wrote remembers obj as the answer to a write.
func (l *Latest[T]) Wrote(obj T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := client.KeyOf(obj)
	if known, ok := l.objects[key]; ok && newer(known, obj) {
		return
	}
	if l.objects == nil {
		l.objects = map[client.Key]T{}
	}
	l.objects[key] = obj
}

// Of returns the newer one of what an informer has under key and what was
// written last. An object that the informer does not have is gone: it was there
// before it was written to.
func (l *Latest[T]) Of(key client.Key, cached T, exists bool) (T, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	written, ok := l.objects[key]
	if !ok {
		return cached, exists
	}
	if exists && newer(written, cached) {
		return written, true
	}
	delete(l.objects, key)
	return cached, exists
}

// Is reports whether obj is what was written last, as an informer has it when it catches up.
func (l *Latest[T]) Is(obj T) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	written, ok := l.objects[client.KeyOf(obj)]
	return ok && written.GetUID() == obj.GetUID() && written.GetResourceVersion() == obj.GetResourceVersion()
}

// newer reports whether a is a later state than b of the same object. It is false
// where that cannot be known.
func newer[T client.Object](a, b T) bool {
	if a.GetUID() != b.GetUID() {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}
