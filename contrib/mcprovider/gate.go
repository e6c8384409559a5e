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

// workingKey is the key of contexts of work that the ring has let begin.
type workingKey struct{}

// working returns the logical cluster that the work of ctx is in, if that has not ended.
func working(ctx context.Context) logicalcluster.Name {
	name, _ := ctx.Value(workingKey{}).(logicalcluster.Name)
	if ctx.Err() != nil {
		return ""
	}
	return name
}

// Gate returns a reconciler that works on what the ring gives to this replica. Other requests are
// dropped: who has the logical cluster has them, too. The context of the work ends when the
// logical cluster goes to another replica, and the work has to end soon after. Without a ring it
// is the reconciler itself.
func (p *Provider) Gate(reconciler mcreconcile.Reconciler) mcreconcile.Reconciler {
	if p.options.Ring == nil {
		return reconciler
	}
	return mcreconcile.Func(func(ctx context.Context, request mcreconcile.Request) (reconcile.Result, error) {
		if request.ClusterName == "" {
			return reconciler.Reconcile(ctx, request) // of the local cluster
		}
		work, end, ok := p.options.Ring.Begin(ctx, client.HashOf(request.ClusterName.String()))
		if !ok {
			return reconcile.Result{}, nil
		}
		defer end()
		work = context.WithValue(work, workingKey{}, logicalcluster.Name(request.ClusterName))
		result, err := reconciler.Reconcile(work, request)
		if work.Err() != nil && ctx.Err() == nil {
			return reconcile.Result{}, nil // it goes on elsewhere
		}
		return result, err
	})
}

// begin begins something in a logical cluster, and fails if another replica has that. What is done
// in work that Gate has begun there may go on until that ends.
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

// owns returns ErrNotOwned if another replica has a logical cluster, or is about to begin there.
func (p *Provider) owns(ctx context.Context, name logicalcluster.Name) error {
	_, end, err := p.begin(ctx, name)
	if err == nil {
		end()
	}
	return err
}

// owned sends requests to a logical cluster while this replica has that. Each is work of its own,
// unless it is a part of work that Gate has begun: it ends when the logical cluster goes, and the
// logical cluster goes when it has ended.
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
	response.Body = answer{response.Body, sync.OnceFunc(end)}
	return response, nil
}

// answer is the body of an answer, with which the request is over.
type answer struct {
	io.ReadCloser

	end func()
}

// Close implements io.Closer.
func (a answer) Close() error {
	defer a.end()
	return a.ReadCloser.Close()
}

// marker is an object by which ranges know a logical cluster.
func marker(name logicalcluster.Name) metav1.Object {
	return &metav1.ObjectMeta{Annotations: map[string]string{logicalcluster.AnnotationKey: name.String()}}
}
