package mcprovider

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/shardplane/shardplane/pkg/client"
)

// workingKey is the context key of work that the ring has permitted.
type workingKey struct{}

// working returns the logical cluster of the work of ctx, unless that has ended.
func working(ctx context.Context) logicalcluster.Name {
	name, _ := ctx.Value(workingKey{}).(logicalcluster.Name)
	if ctx.Err() != nil {
		return ""
	}
	return name
}

// Gate returns a reconciler for the logical clusters that the ring assigns to this replica. Other requests are dropped, because the replica
// with the logical cluster has them as well. If the logical cluster is reassigned, the context ends, and the work must end soon. If there
// is no ring, Gate returns the reconciler itself.
func (p *Provider) Gate(reconciler mcreconcile.Reconciler) mcreconcile.Reconciler {
	if p.options.Ring == nil {
		return reconciler
	}
	return mcreconcile.Func(func(ctx context.Context, request mcreconcile.Request) (reconcile.Result, error) {
		if request.ClusterName == "" {
			return reconciler.Reconcile(ctx, request) // the local cluster
		}
		work, end, ok := p.options.Ring.Begin(ctx, client.HashOf(request.ClusterName.String()))
		if !ok {
			return reconcile.Result{}, nil
		}
		defer end()
		work = context.WithValue(work, workingKey{}, logicalcluster.Name(request.ClusterName))
		result, err := reconciler.Reconcile(work, request)
		if work.Err() != nil && ctx.Err() == nil {
			return reconcile.Result{}, nil // another replica continues
		}
		return result, err
	})
}

// begin begins an operation in a logical cluster, and fails if that is assigned to another replica. If ctx is from Gate, the operation is
// permitted until the work ends.
func (p *Provider) begin(ctx context.Context, name logicalcluster.Name) (work context.Context, end func(), err error) {
	if p.options.Ring == nil || working(ctx) == name {
		return ctx, func() {}, nil
	}
	work, end, ok := p.options.Ring.Begin(ctx, client.HashOf(name.String()))
	if !ok {
		return nil, nil, fmt.Errorf("logical cluster %q: %w", name, ErrNotOwned)
	}
	return work, end, nil
}

// owns returns ErrNotOwned if a logical cluster is assigned to another replica, or is about to be.
func (p *Provider) owns(ctx context.Context, name logicalcluster.Name) error {
	_, end, err := p.begin(ctx, name)
	if err == nil {
		end()
	}
	return err
}

// owned sends requests to a logical cluster while it is assigned to this replica. Requests outside of work from Gate are separate work: if
// the logical cluster is reassigned, they are cancelled, and the reassignment waits until they have ended.
type owned struct {
	http.RoundTripper

	of clusterOf
}

// RoundTrip implements http.RoundTripper.
func (o owned) RoundTrip(request *http.Request) (*http.Response, error) {
	work, end, err := o.of.provider.begin(request.Context(), o.of.name)
	if err != nil {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, err
	}
	response, err := o.RoundTripper.RoundTrip(request.WithContext(work))
	if err != nil {
		end()
		return nil, err
	}
	response.Body = body{response.Body, sync.OnceFunc(end)}
	return response, nil
}

// body is a response body. The request ends when it is closed.
type body struct {
	io.ReadCloser

	end func()
}

// Close implements io.Closer.
func (b body) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// marker returns an object in a logical cluster, to check ranges.
func marker(name logicalcluster.Name) metav1.Object {
	return &metav1.ObjectMeta{Annotations: map[string]string{logicalcluster.AnnotationKey: name.String()}}
}
