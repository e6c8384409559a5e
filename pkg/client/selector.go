package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// stream follows a resource: it gets the initial state, on the watch itself
// where the server can, and then watches, resuming at the last resourceVersion
// it has seen. A new initial state is asked for only when the server no longer
// has the history.
type stream struct {
	*connection
	sink sink

	// pages is set while the initial state has to be listed, because the server
	// has refused to send it on a watch, or did not complete it. The next time it
	// is asked again: it may just have been slow.
	pages    bool
	failures int
	// resumed counts watches that have resumed before the first is current.
	resumed int
	// progress is set when a connection brought what the next one need not ask
	// for: a complete initial state, or an event after it.
	progress bool
	// asked are the ranges of the present connection, and unsharded says that the server has
	// refused their selector.
	asked     Ranges
	unsharded bool
}

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
