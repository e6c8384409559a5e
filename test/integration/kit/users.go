package kit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

// People creates clients of users of the front-proxy.
type People struct {
	*Env
}

// As returns a client of the logical cluster at path for user-n.
func (p People) As(n int, path string) kubernetes.Interface {
	p.T.Helper()
	return p.With(WithToken(p.Proxy(), fmt.Sprintf("user-%d-token", n)), path)
}

// Admin returns a client of an administrator.
func (p People) Admin(path string) kubernetes.Interface {
	p.T.Helper()
	return p.With(p.Proxy(), path)
}

// With returns a client of the logical cluster at path with the credentials of config.
func (p People) With(config *rest.Config, path string) kubernetes.Interface {
	p.T.Helper()
	return harness.Clientset(p.T, config, path)
}

// BindUser creates a ClusterRoleBinding for user-n.
func (p People) BindUser(path, name, role string, n int) {
	p.T.Helper()
	harness.Create(p.T, p.Admin(path).RbacV1().ClusterRoleBindings(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: "User", Name: fmt.Sprintf("user-%d", n)}},
	})
}

// CreateRole creates a ClusterRole with one rule.
func (p People) CreateRole(path, name string, rule rbacv1.PolicyRule) {
	p.T.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule}}
	harness.Create(p.T, p.Admin(path).RbacV1().ClusterRoles(), role)
}

// NotPermitted is the reason in audit events and responses for users without access to a workspace.
const NotPermitted = "workspace access not permitted"

// WhoAmI returns the user that a server authenticates with the credentials of config.
func WhoAmI(t *testing.T, config *rest.Config, cluster string) authenticationv1.UserInfo {
	t.Helper()
	review := harness.Create(t, harness.Clientset(t, config, cluster).AuthenticationV1().SelfSubjectReviews(), &authenticationv1.SelfSubjectReview{})
	return review.Status.UserInfo
}

// NewSigningRequest returns a request for a client certificate with a generated key.
func NewSigningRequest(t *testing.T, name, signer string, subject pkix.Name) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	content, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	require.NoError(t, err)
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: signer, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: content}),
		},
	}
}
