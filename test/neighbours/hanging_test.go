package neighbours

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
)

// hangingFlood is a workspace whose writes hang in a webhook of its own.
type hangingFlood struct {
	*tenant

	// owner administers it, and is another user than who floods.
	owner *tenant
	// asked has an entry for each call of the webhook, and refused the code of each write that failed.
	asked   chan struct{}
	refused chan int
	pending *sync.WaitGroup
}

// floodOf is how many writes a workspace floods with: more than one user may have in flight there.
const floodOf = maxOfCluster/2 + 10

// newHanging makes the webhook in a workspace, of which nobody knows yet when it returns.
func newHanging(t *testing.T, in *tenant, mark string, pending *sync.WaitGroup, release <-chan struct{}) *hangingFlood {
	t.Helper()
	f := &hangingFlood{tenant: in.robot(t, "flooding-"+mark), owner: in, asked: make(chan struct{}, floodOf), refused: make(chan int, floodOf), pending: pending}
	hook := hangs(t, f.asked, release)
	_, err := f.hooks().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: mark},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hanging.example.com", AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: new(int32(30)),
			SideEffects:   new(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy: new(admissionregistrationv1.Ignore),
			ClientConfig:  admissionregistrationv1.WebhookClientConfig{URL: new(hook.URL), CABundle: caOf(hook)},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return f
}

func (f *hangingFlood) hooks() admissionclient.ValidatingWebhookConfigurationInterface {
	return f.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
}

// begin sends so many writes that some of them are refused.
func (f *hangingFlood) begin(ctx context.Context, t *testing.T) {
	t.Helper()
	post := func(i int) {
		f.pending.Go(func() {
			code, _, err := f.call(ctx, http.MethodPost, configMaps+"?dryRun=All", fmt.Sprintf(`{"metadata":{"name":"flood-%d"}}`, i))
			if err == nil && code != http.StatusCreated {
				select {
				case f.refused <- code:
				default: // that many have been told
				}
			}
		})
	}
	// The webhook is there some time after its configuration.
	require.Eventually(t, func() bool { post(0); return len(f.asked) > 0 }, testTimeout, tick, "the webhook is called")
	for i := range floodOf {
		post(i + 1)
	}
	require.Equal(t, http.StatusTooManyRequests, <-f.refused, "one user takes no more than are left for others of the logical cluster")
}

// hanging: requests of six workspaces that hang in their webhooks take nothing that others need, and
// have bounds of their own, in each logical cluster and in all.
func hanging(t *testing.T, w *world) {
	// own is how many requests of a logical cluster may hang however many of others do.
	const flooding, own = 6, 4
	ctx, stop := context.WithCancel(t.Context())
	release := make(chan struct{})
	unblock := sync.OnceFunc(func() { close(release) })
	var pending sync.WaitGroup
	others := []*tenant{w.quiet, w.workspace(t, "beside").robot(t, "beside-"+w.mark)}
	var floods []*hangingFlood
	for i := range flooding {
		in := w.attacker
		if i > 0 {
			in = w.workspace(t, fmt.Sprintf("hanging-%d", i))
		}
		floods = append(floods, newHanging(t, in, w.mark, &pending, release))
	}
	t.Cleanup(func() {
		unblock()
		stop()
		pending.Wait()
		for _, f := range floods {
			_ = f.hooks().Delete(context.WithoutCancel(ctx), w.mark, metav1.DeleteOptions{})
		}
	})

	paused := func() int { return int(counters(t, "shardplane_fairness_paused_requests", nil)) }
	// must has others write, also those read whose workspaces flood, while no more than so many requests hang.
	must := func(most int) {
		for i := range 2 * maxWriting {
			for _, u := range others {
				u.must(t, http.MethodPost, configMaps+"?dryRun=All", fmt.Sprintf(`{"metadata":{"name":"other-%d"}}`, i))
			}
			require.True(t, seen(func() bool { return paused() <= most }), "more requests hang than %d", most)
		}
		for _, f := range floods {
			f.owner.must(t, http.MethodGet, configMaps, "")
		}
	}
	floods[0].begin(ctx, t)
	require.Eventually(t, func() bool { return seen(func() bool { return paused() >= maxPaused/2 }) }, testTimeout, tick, "half of all that may hang are of one workspace")
	must(maxPaused/2 + own*len(others))

	for _, f := range floods[1:] {
		f.begin(ctx, t)
	}
	require.Eventually(t, func() bool {
		for _, f := range floods {
			if len(f.asked) < own {
				return false
			}
		}
		// Each gets no more than are left to others.
		return seen(func() bool { return paused() >= maxPaused*flooding/(flooding+1) })
	}, testTimeout, tick, "as many hang as may, some of each workspace")
	must(maxPaused + own*(flooding+len(others)))

	unblock() // all of them go on together, and may not execute together
	must(maxPaused + own*(flooding+len(others)))
}
