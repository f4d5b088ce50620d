// The inner loops come in three levels: AVX-512 (VNNI, BF16), AVX2, and portable C++. OCTAVO_LEVEL lowers what the
// compiler would allow, so that each can be tested on one machine.
#pragma once

#ifndef OCTAVO_LEVEL
#define OCTAVO_LEVEL 2
#endif
#if defined(__AVX512VNNI__) && defined(__AVX512BF16__) && OCTAVO_LEVEL >= 2
#define OCTAVO_AVX512 1
#elif defined(__AVX2__) && defined(__FMA__) && OCTAVO_LEVEL >= 1
#define OCTAVO_AVX2 1
#endif
