package mcprovider

// Kept returns of how many logical clusters something is kept: what they serve, and clients; and
// how many different things are served.
func (p *Provider) Kept() (served, different, clients int) {
	p.mappings.mu.Lock()
	defer p.mappings.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mappings.of), len(p.mappings.known), len(p.clients)
}
