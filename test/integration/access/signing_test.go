package access

import (
	"crypto/x509/pkix"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestCredentialsOfTenants holds what credentials a tenant with all rights in a
// workspace gets itself there: none but those of its own service accounts.
func TestCredentialsOfTenants(t *testing.T) {
	t.Parallel()
	p := kit.People{Env: kit.Shared(t)}
	cluster := p.WorkspaceOn("root", "credentials", "root").Spec.Cluster
	p.BindUser("root:credentials", "user-1", "cluster-admin", 1)
	tenant := p.As(1, "root:credentials")
	requests := tenant.CertificatesV1().CertificateSigningRequests()
	const clients = "kubernetes.io/kube-apiserver-client"

	_, err := requests.Create(t.Context(), kit.NewSigningRequest(t, "masters", clients, pkix.Name{CommonName: "jane", Organization: []string{"system:masters"}}), metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, `signs for no member of "system:masters"`)
	_, err = requests.Create(t.Context(), kit.NewSigningRequest(t, "server", clients, pkix.Name{CommonName: "system:apiserver"}), metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)

	asked, err := requests.Create(t.Context(), kit.NewSigningRequest(t, "jane", clients, pkix.Name{CommonName: "jane"}), metav1.CreateOptions{})
	require.NoError(t, err)
	asked.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Mine"}}
	_, err = requests.UpdateApproval(t.Context(), asked.Name, asked, metav1.UpdateOptions{})
	require.NoError(t, err, "an approval in one's own workspace is a note to a signer of one's own")
	robots(t, p.Env, tenant, "robot") // the controllers have seen the namespace, and would have seen the request
	asked, err = requests.Get(t.Context(), asked.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, asked.Status.Certificate, "nobody signs")

	require.Equal(t, http.StatusNotFound, codeOf(t, p.Shard(0), "/clusters/"+cluster+"/apis/certificates.k8s.io/v1beta1/clustertrustbundles"), "what all trust is in no tenant's hands")
	for _, audience := range []string{"system:masters", "system:apiserver", p.Shard(0).Host} {
		token := tokenOf(t, tenant, "robot", authenticationv1.TokenRequestSpec{Audiences: []string{audience}})
		for _, server := range []*rest.Config{p.Proxy(), p.Shard(0), p.Shard(1), p.Cache()} {
			require.NotEqual(t, http.StatusOK, codeOf(t, kit.WithToken(server, token), "/clusters/"+cluster+"/api/v1/namespaces"), "a token for %s is not for %s", audience, server.Host)
		}
	}
}
