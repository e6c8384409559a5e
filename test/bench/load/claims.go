package load

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/bench/measure"
)

// writtenObjects are how many objects are written, in turn, while events are measured.
const writtenObjects = 100

// Written makes the objects that Compared writes.
func (b *Bindings) Written(ctx context.Context) error {
	return b.makeConfigMaps(ctx, b.cluster(1), "written", writtenObjects)
}

// Compared measures events of the ConfigMaps of the first logical cluster that has bound
// the export, and accepts its claim, at so many watches of all logical clusters of the
// shard, and by turns at as many through the view.
func (b *Bindings) Compared(ctx context.Context, name string, watches int, o DeliveryOptions) ([]measure.Result, error) {
	of := func(target, base string) *Delivery {
		return &Delivery{Name: name, Target: target, Cluster: b.cluster(1), Told: watches, Watches: slices.Repeat([]string{base + allConfigMaps}, watches)}
	}
	return b.Deliver(ctx, o, of("shard", "/clusters/*"), of("view", viewOf(b.cluster(0), "*")))
}

// ClaimingExports makes an export that claims ConfigMaps in each of the first logical
// clusters, and measures events of a logical cluster that accepts the claim of one of them:
// at the watch of that one alone, and with a watch of each of the others beside it. Then
// those of a logical cluster that accepts all the claims, with a watch of each.
func (b *Bindings) ClaimingExports(ctx context.Context, exports int, o, all DeliveryOptions) ([]measure.Result, error) {
	one, every := b.cluster(b.o.Count-1), b.cluster(b.o.Count)
	ready, err := track(ctx, b.shard, apiExports, hasIdentity)
	if err != nil {
		return nil, err
	}
	defer ready.stop()
	p := &phase{limit: int64(exports)}
	run(ctx, p, b.clients, func(ctx context.Context, c *rest.RESTClient, n int) error {
		return create(ctx, c, b.cluster(n+1), apiExports, "APIExport", exportName, map[string]any{"permissionClaims": []any{claim(nil)}})
	})
	if err := p.recorder.FirstError(); err != nil {
		return nil, fmt.Errorf("making exports: %w", err)
	}
	if err := ready.wait(ctx, exports); err != nil {
		return nil, fmt.Errorf("making exports: %w", err)
	}
	var watches []string
	for n := range exports {
		provider := b.cluster(n + 1)
		watches = append(watches, viewOf(provider, "*")+allConfigMaps)
		if n == 0 {
			err = b.accept(ctx, one, provider, 0)
		}
		if err == nil {
			err = b.accept(ctx, every, provider, n)
		}
		if err != nil {
			return nil, fmt.Errorf("accepting the claim of export %d: %w", n, err)
		}
	}
	for _, cluster := range []string{one, every} {
		if err := b.makeConfigMaps(ctx, cluster, "written", writtenObjects); err != nil {
			return nil, fmt.Errorf("making the objects that are written: %w", err)
		}
	}
	name := "claim of one export accepted"
	results, err := b.Deliver(ctx, o,
		&Delivery{Name: name, Target: "alone", Cluster: one, Watches: watches[:1], Told: 1},
		&Delivery{Name: name, Target: fmt.Sprintf("of %d", exports), Cluster: one, Watches: watches, Told: 1})
	if err != nil {
		return nil, err
	}
	more, err := b.Deliver(ctx, all, &Delivery{Name: "claims of all accepted", Target: fmt.Sprintf("of %d", exports), Cluster: every, Watches: watches, Told: exports})
	return append(results, more...), err
}

// accept binds the export of a provider, accepts its claim, and waits until that has effect.
func (b *Bindings) accept(ctx context.Context, cluster, provider string, n int) error {
	if err := create(ctx, b.clients[0], cluster, apiBindings, "APIBinding", fmt.Sprintf("%s%d", exportName, n), bindingSpec(provider, true)); err != nil {
		return err
	}
	return waitFor(ctx, b.clients[1], viewOf(provider, cluster)+allConfigMaps+"?limit=1", true)
}
