package mcprovider

// Kept returns the number of logical clusters with mappings, the number of different mappings, and the number of clients.
func (p *Provider) Kept() (served, different, clients int) {
	p.mappings.mu.Lock()
	defer p.mappings.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mappings.of), len(p.mappings.known), len(p.clients)
}
