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

// stream follows a resource: it receives the initial state, on the watch if the server supports it, and then
// watches, resuming at the last received resourceVersion. It requests the initial state again only if the server
// no longer has the history.
type stream struct {
	*connection
	sink sink

	// pages is set if the initial state must be listed because the server rejected it on a watch or did not
	// complete it. It is reset by the next complete state, because the server may just have been slow.
	pages    bool
	failures int
	// resumed counts watches that resumed before the informer was current.
	resumed int
	// progress is set when a connection delivered a complete initial state or an event after it.
	progress bool
	// requested are the ranges of the current connection. unsharded is set if the server rejected their selector.
	requested Ranges
	unsharded bool
}

func (s *stream) options() metav1.ListOptions {
	opts := s.selected
	if !s.unsharded {
		opts.ShardSelector = s.requested.String()
	}
	return opts
}

// send sends a request, and repeats it without the shard selector if the server rejects the selector.
func send[R any](ctx context.Context, s *stream, opts metav1.ListOptions, request func(context.Context, metav1.ListOptions) (R, error)) (R, error) {
	response, err := request(ctx, opts)
	if opts.ShardSelector == "" || opts.Continue != "" || !selectorRefused(err) {
		return response, err
	}
	opts.ShardSelector = ""
	plain, plainErr := request(ctx, opts)
	if plainErr == nil {
		s.unsharded = true
		s.filterReport.set(ctx, FilteredByClient, err)
	}
	return plain, plainErr
}

// selectorRefused reports whether a server may have rejected a request because of its selector: kube-apiserver
// returns 500 for selectors that it does not understand.
func selectorRefused(err error) bool {
	code := statusCode(err)
	return code == http.StatusBadRequest || code == http.StatusInternalServerError
}

// statusCode returns the HTTP status code of an error response, or 0.
func statusCode(err error) int32 {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return 0
	}
	return status.Status().Code
}

func (s *stream) checkList(ctx context.Context, list runtime.Object) error {
	if s.requestRanges == nil || s.unsharded {
		return nil
	}
	if sharded, ok := list.(metav1.ShardedListInterface); ok && sharded.GetShardInfo() != nil {
		return s.checkSelector(ctx, sharded.GetShardInfo().Selector)
	}
	// Lists without Go types have it in their content.
	if untyped, ok := list.(*unstructured.UnstructuredList); ok {
		if selector, ok, _ := unstructured.NestedString(untyped.Object, "metadata", "shardInfo", "selector"); ok {
			return s.checkSelector(ctx, selector)
		}
	}
	return nil
}

// checkInitialEvents evaluates the selector in the bookmark at the end of the initial events. kube-apiserver does
// not set it there, but in lists.
func (s *stream) checkInitialEvents(ctx context.Context, selector string) error {
	if s.requestRanges == nil || s.unsharded {
		return nil
	}
	if selector == "" {
		return s.probe(ctx)
	}
	return s.checkSelector(ctx, selector)
}

// checkSelector records that the server has filtered by a selector. It fails if that does not include all
// requested ranges, because missing objects would be handled as deleted.
func (s *stream) checkSelector(ctx context.Context, selector string) error {
	if served, err := ParseRanges(selector); err != nil || !s.requested.minus(served).Empty() {
		return fmt.Errorf("the server has applied another shardSelector than requested, check for proxies that change requests: requested %s, got %s", s.requested, cmp.Or(selector, "none"))
	}
	s.filterReport.set(ctx, FilteredByServer, nil)
	return nil
}

// probe lists one object to determine whether the server supports shard selectors. The response to a watch that
// resumes does not contain that.
func (s *stream) probe(ctx context.Context) error {
	if s.requestRanges == nil || s.filterReport.filtered() == FilteredByServer {
		return nil
	}
	opts := s.options()
	opts.Limit = 1
	page, err := s.source.list(ctx, opts)
	if err != nil {
		return nil //nolint:nilerr // the watch returns the error, if any
	}
	return s.checkList(ctx, page)
}
