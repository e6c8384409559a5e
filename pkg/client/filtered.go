package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
)

// Filtered says who selects the objects that are in the ranges of an informer.
type Filtered string

const (
	// FilteredByServer says that the server sends no others.
	FilteredByServer Filtered = "server"
	// FilteredByClient says that the server sends others, too, at the cost of all, and the informer
	// discards them.
	FilteredByClient Filtered = "client"
	// FilteredUnknown says that the server has not said so, and has not sent others yet. So it is before
	// the first answer, and without ranges.
	FilteredUnknown Filtered = "unknown"
)

// report is what is known of who filters.
type report struct {
	name      string
	mu        sync.Mutex
	by        Filtered
	logged    sync.Once
	discarded atomic.Uint64
}

func newReport(name string) *report { return &report{name: name, by: FilteredUnknown} }

// filtered returns who filters.
func (r *report) filtered() Filtered {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.by
}

// learn notes who filters; why says why it is the client.
func (r *report) learn(ctx context.Context, by Filtered, why error) {
	r.mu.Lock()
	before := r.by
	r.by = by
	r.mu.Unlock()
	if before == by {
		return
	}
	logger := klog.FromContext(ctx).WithValues("informer", r.name)
	if by != FilteredByClient {
		logger.V(2).Info("Who filters what the informer holds has changed", "before", before, "now", by)
		return
	}
	r.logged.Do(func() {
		logger.Info("The server sends objects beyond the informer's ranges: each replica receives all of them, and discards those of others", "why", why)
	})
}

// Filtered returns who selects the objects in the ranges of the informer, by what the server
// has said and done last.
func (i *Informer[T]) Filtered() Filtered { return i.report.filtered() }

// Discarded returns how many objects and events the informer was sent that are not in its
// ranges.
func (i *Informer[T]) Discarded() uint64 { return i.report.discarded.Load() }

var errNotFiltered = errors.New("it does not know shard selectors, or its feature gate ShardedListAndWatch is off")

// options returns those of a request of the present connection.
func (s *stream) options() metav1.ListOptions {
	opts := s.selected
	if !s.unsharded {
		opts.ShardSelector = s.asked.String()
	}
	return opts
}

// ask sends a request, and once more without the selector of shards if the server refuses
// that. If it works, the connection goes on so.
func ask[R any](ctx context.Context, s *stream, opts metav1.ListOptions, request func(context.Context, metav1.ListOptions) (R, error)) (R, error) {
	answer, err := request(ctx, opts)
	if opts.ShardSelector == "" || opts.Continue != "" || !selectorRefused(err) {
		return answer, err
	}
	opts.ShardSelector = ""
	plain, plainErr := request(ctx, opts)
	if plainErr == nil {
		s.unsharded = true
		s.report.learn(ctx, FilteredByClient, err)
	}
	return plain, plainErr
}

// selectorRefused reports whether a server may have refused a request for its selector:
// upstream's answers 500 to one that it does not understand.
func selectorRefused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code == http.StatusBadRequest || code == http.StatusInternalServerError
}

// learnFromList notes what a list says of who selected its items.
func (s *stream) learnFromList(ctx context.Context, list runtime.Object) error {
	if s.asks == nil || s.unsharded {
		return nil
	}
	if sharded, ok := list.(metav1.ShardedListInterface); ok && sharded.GetShardInfo() != nil {
		return s.learnFrom(ctx, sharded.GetShardInfo().Selector)
	}
	// A list without types has it in its content.
	if untyped, ok := list.(*unstructured.UnstructuredList); ok {
		if says, ok, _ := unstructured.NestedString(untyped.Object, "metadata", "shardInfo", "selector"); ok {
			return s.learnFrom(ctx, says)
		}
	}
	return nil
}

// learnFromEnd notes what the end of the initial events says of who selected them. Where it says
// nothing, as upstream's, a list may.
func (s *stream) learnFromEnd(ctx context.Context, says string) error {
	switch {
	case s.asks == nil || s.unsharded:
		return nil
	case says == "":
		return s.probe(ctx)
	default:
		return s.learnFrom(ctx, says)
	}
}

// learnFrom notes that the server has filtered, by the selector that it says. It fails if that
// leaves out what was asked for, or may, since it cannot be read: what is missing would be taken
// for deleted.
func (s *stream) learnFrom(ctx context.Context, says string) error {
	if answered, err := ParseRanges(says); err != nil || !s.asked.minus(answered).Empty() {
		return fmt.Errorf("the server answers another shardSelector than it was asked, check what is between: asked %s, and got %s", s.asked, cmp.Or(says, "none"))
	}
	s.report.learn(ctx, FilteredByServer, nil)
	return nil
}

// probe asks for one object, to learn whether the server knows selectors, or has come to know them
// since it was asked last: a watch that resumes does not say.
func (s *stream) probe(ctx context.Context) error {
	if s.asks == nil || s.report.filtered() == FilteredByServer {
		return nil
	}
	opts := s.options()
	opts.Limit = 1
	page, err := s.source.list(ctx, opts)
	if err != nil {
		return nil //nolint:nilerr // the watch says what is wrong, if anything is
	}
	return s.learnFromList(ctx, page)
}
